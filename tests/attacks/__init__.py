"""Hostile files, tests, machines and services: a table of attacks for each, with what they may not reach."""
