"""Batch APIs: many texts as one cheaper job of the provider, and the ledger of such jobs."""
