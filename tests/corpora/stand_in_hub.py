"""A hub on this machine: it answers for one dataset what `datasets` asks the real one, by the hub's own addresses."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


@contextmanager
def hub(dataset: str, commits: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Serve a dataset's files by commit; the first commit is `main`. The address."""

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, *_: object) -> None:
            """Nothing."""

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            asked = self.rfile.read(size).decode()
            parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
            if parts == [""]:
                return self._send(b"a hub")
            if parts[:2] == ["api", "datasets"] and "/".join(parts[2:4]) == dataset:
                return self._facts(*parts[4:6], "/".join(parts[6:]), asked)
            if parts[0] == "datasets" and "/".join(parts[1:3]) == dataset and parts[3] == "resolve":
                return self._file(parts[4], "/".join(parts[5:]))
            return self._nothing("RepoNotFound")

        def _facts(self, *words: str) -> None:
            kind, revision, below, asked = words if len(words) == 4 else ("", "main", "", "")
            commit = next(iter(commits)) if revision == "main" else revision
            if commit not in commits:
                return self._nothing("RevisionNotFound")
            files = commits[commit]
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": commit} for name, content in files.items()
            ]
            folders = {name.rpartition("/")[0] for name in files} - {""}
            entries += [{"type": "directory", "path": folder, "size": 0, "oid": commit} for folder in folders]
            if kind == "tree":
                found = [entry for entry in entries if str(entry["path"]).startswith(below)]
                return self._send(json.dumps(found).encode())
            if kind == "paths-info":
                wanted = parse_qs(asked).get("paths") or json.loads(asked)["paths"]
                return self._send(json.dumps([entry for entry in entries if entry["path"] in wanted]).encode())
            facts = {"id": dataset, "sha": commit, "siblings": [{"rfilename": name} for name in files], "tags": []}
            return self._send(json.dumps({**facts, "private": False, "downloads": 0}).encode())

        def _file(self, revision: str, name: str) -> None:
            commit = next(iter(commits)) if revision == "main" else revision
            content = commits.get(commit, {}).get(name)
            if content is None:
                return self._nothing("EntryNotFound" if commit in commits else "RevisionNotFound")
            return self._send(content, {"ETag": f'"{commit}-{name}"', "X-Repo-Commit": commit})

        def _nothing(self, code: str) -> None:
            self._send(b"{}", {"X-Error-Code": code}, status=404)

        def _send(self, content: bytes, headers: Mapping[str, str] | None = None, status: int = 200) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
