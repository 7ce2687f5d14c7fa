"""What every HTTP interface needs: identity, sessions, quotas, uploads, errors, lists, event streams, connections."""
