"""One tree of errors. Each carries a code, what to do next, and its HTTP status.

An error is raised where its cause is known and turned into an HTTP answer in one place
(`jupyter_ext.handlers`) and into a notebook message in one place (`horus_lab.notebook`).
"""

from __future__ import annotations

from typing import ClassVar


class HorusError(Exception):
    """The root of Horus Lab's errors.

    Attributes:
        code: a stable, machine-readable name of the kind of error.
        status: the HTTP status that the API answers with.
        message: what is wrong, and what was expected.
        hint: what to do next; may be empty.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class InvalidRequest(HorusError):
    """The request's body or arguments are malformed, out of bounds or not finite."""

    code = "invalid_request"
    status = 400


class NotAuthenticated(HorusError):
    """Nobody that Horus knows sent this request."""

    code = "not_authenticated"
    status = 401


class Forbidden(HorusError):
    """The caller is known, and may not do this (another person's job, say)."""

    code = "forbidden"
    status = 403


class UnknownJob(HorusError):
    """No job has this id."""

    code = "unknown_job"
    status = 404


class UnknownDevice(HorusError):
    """No device has this UUID."""

    code = "unknown_device"
    status = 404


class Conflict(HorusError):
    """The same request id came with another body."""

    code = "conflict"
    status = 409


class InvalidTransition(HorusError):
    """The job's state does not allow this (cancelling what has ended, say)."""

    code = "invalid_transition"
    status = 409


class StaleFence(HorusError):
    """The caller's fence is not the lease's: the lease was withdrawn or replaced."""

    code = "stale_fence"
    status = 409


class JobCancelled(HorusError):
    """The job was cancelled before it could start."""

    code = "job_cancelled"
    status = 409


class NeverFits(HorusError):
    """No device here could ever hold the job, even alone."""

    code = "never_fits"
    status = 422


class TooLarge(HorusError):
    """The body is larger than the API accepts."""

    code = "too_large"
    status = 413


class TooManyJobs(HorusError):
    """The caller's queue, or the whole queue, is full."""

    code = "too_many_jobs"
    status = 429


class StoreUnavailable(HorusError):
    """The store could not be read or written; nothing was acknowledged."""

    code = "store_unavailable"
    status = 503


class BrokerUnavailable(HorusError):
    """The broker could not be found or did not answer."""

    code = "broker_unavailable"
    status = 503


class CaptureFailed(HorusError):
    """No capture method could make features of this module and batch."""

    code = "capture_failed"
    status = 422


class DeviceUnavailable(HorusError):
    """A probe or one of its devices cannot be read at all."""

    code = "device_unavailable"
    status = 503


class DeviceNotVisible(HorusError):
    """The granted device cannot be used by this kernel (CUDA was initialised without it)."""

    code = "device_not_visible"
    status = 409


class ConfigurationError(HorusError):
    """A setting cannot be understood."""

    code = "configuration"
    status = 500


OUT_OF_REACH = (BrokerUnavailable, StoreUnavailable, NotAuthenticated, UnknownJob)
"""What says that there is no working broker for this caller: a training goes on without one."""
