"""C++ for a CPU: the pipeline of passes, the printers, the sources."""
