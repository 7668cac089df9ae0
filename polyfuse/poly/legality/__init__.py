"""Proofs: schedules keep dependences, indices stay in range, pieces cover what is read."""
