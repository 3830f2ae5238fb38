"""Requests: readers of real traces and a seeded generator."""
