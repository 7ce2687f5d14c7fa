"""The console: web pages where people look and act. Server-rendered; what moves arrives as fragments of HTML.

It is a router of the API's process, and calls services and queries only, with the same rights, limits and errors.
"""
