"""The C++ compiler: found, run, its libraries loaded."""
