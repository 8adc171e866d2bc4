"""Fetches one file over HTTP: resumes what was interrupted, verifies it, and never leaves a wrong final file.

Knows nothing of models or catalogues. The bytes so far lie beside the target in `.part`; its ETag in `.etag`, so
that a file that has changed on the server is started anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import DownloadError, ModelNotFoundError
from edgespec.hub.files import (
    Progress,
    beside,
    check_space,
    disk_full,
    finish,
    is_full,
    locked,
    make_folder,
    mb,
    unwritable,
)

if TYPE_CHECKING:
    import requests

_CHUNK = 64 << 10
"""Bytes written at once: what has come of a chunk is lost when the line drops."""
_TIMEOUT_S = (15.0, 60.0)
_RETRY_DELAYS_S = (1.0, 2.0, 4.0)
"""Waits after tries that brought nothing; a try that brought bytes starts the count again."""


class _Interrupted(Exception):  # noqa: N818 - internal: the transfer ended early and may be taken up again
    def __init__(self, text: str, *, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable


@dataclass
class _Transfer:
    """One file on its way. `size` and `sha256` start as what the caller knows and take what the server says."""

    url: str
    target: Path
    headers: dict[str, str]
    progress: Progress
    size: int | None
    sha256: str | None

    @property
    def part(self) -> Path:
        return beside(self.target, ".part")

    @property
    def etag(self) -> Path:
        return beside(self.target, ".etag")

    def have(self) -> int:
        """Bytes fetched so far."""
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    def restart(self) -> None:
        """Forget what was fetched."""
        self.part.unlink(missing_ok=True)
        self.etag.unlink(missing_ok=True)

    def attempt(self, session: requests.Session) -> None:
        """Ask for what is missing and append it.

        Raises:
            _Interrupted: the connection failed or ended early.
            DownloadError: it makes no sense to try again.
        """
        import requests

        have = self.have()
        headers = {"Accept-Encoding": "identity", **self.headers}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.etag.is_file():
                headers["If-Range"] = self.etag.read_text(encoding="latin-1")
        try:
            with session.get(self.url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
                if response.status_code == 416:
                    self._refused_range(response, have)
                    return
                self._check_status(response)
                start = self._start(response, have)
                self._learn(response, start)
                self._receive(response, start)
        except requests.exceptions.RequestException as error:
            # A line that broke off or went silent may come back; a wrong address or no connection will not.
            kinds = requests.exceptions
            passing = isinstance(error, kinds.ChunkedEncodingError | kinds.Timeout)
            unreachable = isinstance(error, kinds.ConnectionError) or not passing
            raise _Interrupted(_reason(error), unreachable=unreachable) from error

    def _refused_range(self, response: requests.Response, have: int) -> None:
        """416: either everything is here already, or what is here is not the beginning of this file."""
        found = re.fullmatch(r"bytes \*/([0-9]+)", response.headers.get("Content-Range", ""))
        if have and found and int(found[1]) == have:
            self.size = have if self.size is None else self.size
            return
        self.restart()
        raise _Interrupted("the server refused to go on where it stopped")

    def _check_status(self, response: requests.Response) -> None:
        status = response.status_code
        if status in {200, 206}:
            return
        if status in {401, 403}:
            raise DownloadError(
                f"{self.url}: access denied ({status}); accept the model's licence on the hub and set HF_TOKEN, "
                "or check the name"
            )
        if status in {404, 410}:
            raise ModelNotFoundError(f"{self.url}: no such file ({status})")
        if status == 429 or status >= 500:
            raise _Interrupted(f"the server answered {status}")
        raise DownloadError(f"{self.url}: the server answered {status}")

    def _start(self, response: requests.Response, have: int) -> int:
        """Where in the file this answer begins; a 200 is always the whole file."""
        if response.status_code == 200:
            return 0
        found = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have:
            self.restart()
            raise _Interrupted("the server sent another part of the file than asked for")
        return have

    def _learn(self, response: requests.Response, start: int) -> None:
        """Take length and checksum from the answer, and refuse before writing what cannot be right or cannot fit."""
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        if self.size is None:
            self.size = total
        elif total is not None and total != self.size:
            self.restart()
            raise DownloadError(f"{self.url} is {total} bytes long instead of {self.size}: it is another file")
        # The hub redirects large files and names their SHA-256 beside the redirect.
        for answer in response.history:
            linked = answer.headers.get("X-Linked-ETag", "").strip('"')
            if self.sha256 is None and re.fullmatch(r"[0-9a-f]{64}", linked):
                self.sha256 = linked
        if self.size is not None:
            check_space(self.part, self.size - start)

    def _receive(self, response: requests.Response, start: int) -> None:
        etag = response.headers.get("ETag", "")
        done = start
        try:
            with self.part.open("ab" if start else "wb") as file:
                if etag.startswith('"'):  # a weak one does not promise the same bytes
                    self.etag.write_text(etag, encoding="latin-1")
                else:
                    self.etag.unlink(missing_ok=True)
                self.progress.update(done, self.size)
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if self.size is not None and done > self.size:
                        break  # finish() refuses it; no need to fill the disk first
                    self.progress.update(done, self.size)
        except OSError as error:
            if is_full(error):
                raise disk_full(self.part, None if self.size is None else self.size - self.have()) from error
            if _is_requests_error(error):
                raise  # they are OSErrors too
            raise unwritable(self.part, error) from error
        if self.size is not None and done < self.size:
            raise _Interrupted(f"it ended after {mb(done)} of {mb(self.size)}")


def fetch(
    url: str,
    target: Path,
    *,
    progress: Progress,
    size: int | None = None,
    sha256: str | None = None,
    token: str | None = None,
    force: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make `target` the file at `url`, of that size and checksum where they are given.

    Does nothing where the target exists and `force` is false, also where another process fetched it meanwhile.

    Raises:
        ModelNotFoundError: the server has no such file.
        DownloadError: no network, disk full, folder unwritable, or not the file that was expected.
    """
    make_folder(target.parent)
    with locked(target, progress):
        if target.exists() and not force:
            return
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transfer = _Transfer(url, target, headers, progress, size, sha256)
        try:
            _run(transfer, sleep)
            try:
                finish(transfer.part, target, transfer.size, transfer.sha256, progress)
            finally:
                transfer.etag.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(target, error) from error


def _run(transfer: _Transfer, sleep: Callable[[float], None]) -> None:
    """Try until the file is complete.

    Raises:
        DownloadError: the tries are used up, or more of them make no sense.
    """
    import requests

    if transfer.size is not None:
        if transfer.have() > transfer.size:
            transfer.restart()
        if transfer.have() == transfer.size:
            return
        check_space(transfer.part, transfer.size - transfer.have())
    failures, progressed = 0, False
    with requests.Session() as session:
        while True:
            before = transfer.have()
            try:
                transfer.attempt(session)
            except _Interrupted as error:
                came = transfer.have() > before
                failures = 1 if came else failures + 1
                progressed = progressed or came
                # Without any connection there is nothing to wait for, unless one has just broken off.
                if failures > len(_RETRY_DELAYS_S) or (error.unreachable and not progressed):
                    kept = f" ({mb(transfer.have())} are kept for the next try)" if transfer.have() else ""
                    raise DownloadError(f"cannot fetch {transfer.url}: {error}{kept}") from error
                sleep(_RETRY_DELAYS_S[failures - 1])
            else:
                return


def _is_requests_error(error: OSError) -> bool:
    import requests

    return isinstance(error, requests.exceptions.RequestException)


def _reason(error: requests.exceptions.RequestException) -> str:
    """One line about a failed request; requests' own texts are long and name internals."""
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return f"the connection is not trusted ({error.args[0] if error.args else error})"
    if isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.ReadTimeout):
        return "the server does not answer"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, requests.exceptions.ConnectionError):
        return "no network, or the server cannot be reached"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
