"""Wire format: how messages look on the wire, and which input from there is valid.

``codec`` packs messages, ``fields`` checks values, ``payload`` has the bytes beside a header, and
``greeting`` comes first; ``wire_version`` is in both. Nothing here knows how frames travel.
"""
