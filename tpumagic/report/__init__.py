"""The report of one cell: versioned data, and its views."""
