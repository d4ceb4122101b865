"""The door of the server: who may come in, from where, how often and with how much.

    door.py        the ASGI layer that asks the others, outermost first
    sites.py       Host, Origin and Sec-Fetch-Site: which pages of which names may talk to us; CORS
    routes.py      what each route needs: one table
    rates.py       how many requests and images a minute, and how many wrong keys
    session.py     the page's login: a form, a signed cookie
    body.py        the body, counted and timed while it streams in
    headers.py     what every answer carries
    first_key.py   the key that a container makes for itself at its first start
    protocol.py    limits that hold before there is a request: the size and the time of its head
    fetching.py    images by their web addresses, if switched on

The keys themselves are a file further up, for the settings hold them. docs/security.md tells what each protects from.
"""
