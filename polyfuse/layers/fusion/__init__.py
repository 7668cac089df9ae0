"""Layer I: loops fused by schedules."""
