"""CUDA without a GPU: thread by thread, with checks."""
