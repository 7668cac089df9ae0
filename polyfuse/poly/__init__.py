"""The polyhedral side: iteration domains, schedules and proofs, by isl."""
