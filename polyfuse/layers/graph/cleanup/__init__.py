"""Clean-up of a tensor graph before it is scheduled: `run.cleaned` is all of it."""
