"""Code generation: kernels to loops, loops through passes, loops to C++ or CUDA."""
