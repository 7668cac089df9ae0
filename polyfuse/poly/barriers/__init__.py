"""Barriers of GPU kernels: where they are needed, and proofs that they are enough."""
