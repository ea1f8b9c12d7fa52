"""Feeds without end on every 127.0.0.x: each path is one, of ten items, with an ETag. Prints its port."""

from __future__ import annotations

import asyncio

ITEMS = 10
_ITEM = (
    "<item><guid>{path}-{number}</guid><title>Item {number} of {path}</title><link>https://example.org{path}/{number}"
    "</link><description>&lt;p&gt;{words}&lt;/p&gt;</description><pubDate>Sat, 07 Sep 2024 00:00:{number:02} GMT"
    "</pubDate></item>"
)
_WORDS = "A few words of a description, as feeds have them. " * 10


def feed(path: str) -> bytes:
    items = "".join(_ITEM.format(path=path, number=number, words=_WORDS) for number in reversed(range(ITEMS)))
    return f'<rss version="2.0"><channel><title>{path}</title>{items}</channel></rss>'.encode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ", 2)[1]
        if f'"{path}"' in head:
            writer.write(f'HTTP/1.1 304 Not Modified\r\nETag: "{path}"\r\nConnection: close\r\n\r\n'.encode())
        else:
            body = feed(path)
            said = f'Content-Type: text/xml\r\nETag: "{path}"\r\nContent-Length: {len(body)}\r\nConnection: close'
            writer.write(f"HTTP/1.1 200 OK\r\n{said}\r\n\r\n".encode() + body)
        await writer.drain()
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "0.0.0.0", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
