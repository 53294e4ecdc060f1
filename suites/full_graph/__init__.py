"""Whole models trained for several optimizer steps, through ``regional.compile`` and through pipelines of passes."""
