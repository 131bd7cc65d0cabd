"""Who runs where, next to whom, and when. Pure: values in, values out."""
