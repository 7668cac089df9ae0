"""A learned cost model: data, features, the model, and how it is asked."""
