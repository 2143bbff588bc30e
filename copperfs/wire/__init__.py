"""How messages look on the wire, and what is believed of what comes from there.

``codec`` turns a message into a header and back, ``fields`` has what each kind of value may be,
``payload`` the bytes that travel beside a header and their digest, ``greeting`` what two ends tell
each other before the first message. Nothing here knows how frames travel.
"""
