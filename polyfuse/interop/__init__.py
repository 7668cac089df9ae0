"""Arrays of other libraries."""
