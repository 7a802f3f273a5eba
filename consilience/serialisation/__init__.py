"""Forms in which things are written down, so that another time, program or machine can read them.

- `settings`: methods and other settings as JSON, and `field=value` texts.
- `typed`: JSON as values of the types that classes declare.
- `codec`: trees of tensors, and the classes that may be stored or cross the wire.
- `blueprint`: a task as JSON.
- `envelope`: a tree in one signed file.
- `signature`: Ed25519 keys and signatures.
"""
