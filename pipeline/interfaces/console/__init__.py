"""The console: web pages that show Penstock's state and act on it. The server renders them, and pushes changed HTML.

It runs in the API's process, and calls operations only, with the same rights, limits and errors as the API.
"""
