"""The forms between passes: tensor graph, schedule tree, kernel, loops, launch plan."""
