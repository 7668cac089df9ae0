"""Polyfuse on a machine with a GPU and no network: `make gpu-pack` gathers, `make gpu` runs and reports."""
