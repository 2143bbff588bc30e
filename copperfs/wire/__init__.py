"""Wire format: how messages look on the wire, and which input from there is valid.

``codec`` turns a message into a header and back. ``fields`` defines the valid values of each kind.
``payload`` has the bytes beside a header and their digest, ``greeting`` what two ends exchange
before the first message. Nothing here knows how frames travel.
"""
