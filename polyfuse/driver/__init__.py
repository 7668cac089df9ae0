"""The way of the data: from a program through the layers to what runs."""
