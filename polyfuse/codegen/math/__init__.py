"""The prelude of emitted sources: scalar and vector functions in C++ and CUDA (`*.h`)."""
