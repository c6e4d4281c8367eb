"""Numbers for the eye: rows in, plotly figures out, as plain data that the page carries as JSON.

Colours are not here: a trace names its category, and the script takes the colour from the style sheet, so that light
and dark and every legend agree.
"""
