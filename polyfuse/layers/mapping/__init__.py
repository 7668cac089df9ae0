"""From schedules to kernels of a machine: workers, threads, lanes, storage."""
