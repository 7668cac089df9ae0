"""Pictures (SVG): schedules, threads, launches."""
