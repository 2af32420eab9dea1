"""Text of answers for people: jobs, failed documents, progress, and what a terminal may show of a note."""
