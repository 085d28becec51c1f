"""The audit of receipts that others published: an appendix of the report."""
