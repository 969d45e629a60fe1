# cython: language_level=3
"""A thread that makes bytes durable in files and never waits for the interpreter's lock.

It joins the buffers in aligned memory, so that a disk can read them from there (``O_DIRECT``).

A Python thread can begin a write only when the loop lets go of that lock, and tell of its end only when it
gets it again. Decision 0131 has the figures.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.types cimport off_t
from posix.unistd cimport close, getpid, read, write

cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    int RWF_DSYNC
    ssize_t pwritev2(int descriptor, const iovec *parts, int count, off_t offset, int flags)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **memory, size_t alignment, size_t size)

cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int count, int flags)

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *semaphore, int shared, unsigned int count)
    int sem_post(sem_t *semaphore)
    int sem_wait(sem_t *semaphore)
    int sem_destroy(sem_t *semaphore)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t *thread, void *attributes, void *(*run)(void *) noexcept nogil, void *work)
    int pthread_join(pthread_t thread, void **result)
    int pthread_setname_np(pthread_t thread, const char *name)

cdef enum:
    _ALIGNMENT = 4096  # of memory that a disk can read
    _KEPT_BYTES_MAX = 8 << 20


cdef struct Work:
    sem_t wanted
    bint is_asked  # to write; else to end
    int done  # an eventfd
    int descriptor
    off_t offset
    Py_buffer *views
    Py_ssize_t count
    iovec joined
    int64_t written
    int64_t took_ns


cdef int64_t _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef void _write(Work *work) noexcept nogil:
    cdef int64_t began_ns = _now_ns()
    cdef char *end = <char *>work.joined.iov_base
    cdef Py_ssize_t number
    for number in range(work.count):
        memcpy(end, work.views[number].buf, work.views[number].len)
        end += work.views[number].len
    work.written = pwritev2(work.descriptor, &work.joined, 1, work.offset, RWF_DSYNC)
    if work.written < 0:
        work.written = -errno
    work.took_ns = _now_ns() - began_ns


cdef void *_run(void *argument) noexcept nogil:
    cdef Work *work = <Work *>argument
    cdef uint64_t one = 1
    while True:
        while sem_wait(&work.wanted) != 0:
            pass  # a signal
        if not work.is_asked:
            return NULL
        work.is_asked = False
        _write(work)
        write(work.done, &one, sizeof(one))


cdef class DurableWrites:
    """One write at a time. Every method but ``join`` is for one thread, the loop's.

    Args:
        name: of the thread, as the system shows it; up to 15 bytes.

    Raises:
        OSError: there is no descriptor or no thread for it.
    """

    cdef Work *_work
    cdef Py_ssize_t _room  # for so many views
    cdef size_t _bytes  # of the memory that they are joined in
    cdef pthread_t _thread
    cdef int _process  # that has the thread; 0: it has ended

    def __cinit__(self, bytes name):
        self._work = <Work *>PyMem_Calloc(1, sizeof(Work))
        if self._work == NULL:
            raise MemoryError
        sem_init(&self._work.wanted, 0, 0)
        self._work.done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self._work.done < 0:
            raise OSError(errno, "eventfd")
        error = pthread_create(&self._thread, NULL, _run, self._work)
        if error:
            raise OSError(error, "pthread_create")
        self._process = getpid()
        pthread_setname_np(self._thread, name)

    def __dealloc__(self):
        self.stop()
        self.join()
        if self._work != NULL:
            self._release()
            if self._work.done >= 0:
                close(self._work.done)
            sem_destroy(&self._work.wanted)
            PyMem_Free(self._work.views)
            free(self._work.joined.iov_base)
        PyMem_Free(self._work)

    def fileno(self):
        """Becomes readable when a write has ended: call ``take`` then."""
        return self._work.done

    def submit(self, int descriptor, list buffers, off_t offset):
        """Begin to write the buffers one after the other; they must not change before ``take``.

        Raises:
            MemoryError: nothing is written.
        """
        cdef Work *work = self._work
        cdef size_t size = 0
        assert work.count == 0, "one write at a time"
        self._make_room(len(buffers))
        try:
            for buffer in buffers:
                PyObject_GetBuffer(buffer, &work.views[work.count], PyBUF_SIMPLE)
                size += work.views[work.count].len
                work.count += 1
            self._allocate(size)
        except BaseException:
            self._release()
            raise
        work.descriptor, work.offset, work.is_asked = descriptor, offset, True
        sem_post(&work.wanted)

    def take(self):
        """What became of the write: its durable bytes or a negative errno, and how many seconds it took."""
        cdef uint64_t ended
        read(self._work.done, &ended, sizeof(ended))
        self._release()
        return self._work.written, self._work.took_ns / 1e9

    def stop(self):
        """Let the thread end, after the write that is under way."""
        if self._process == getpid():
            sem_post(&self._work.wanted)

    def join(self):
        """Wait for its end, which ``stop`` asked for."""
        if self._process == getpid():  # a child by fork has no such thread
            self._process = 0
            with nogil:
                pthread_join(self._thread, NULL)

    cdef int _make_room(self, Py_ssize_t count) except -1:
        if count > self._room:
            views = <Py_buffer *>PyMem_Realloc(self._work.views, count * sizeof(Py_buffer))
            if views == NULL:
                raise MemoryError
            self._work.views, self._room = views, count
        return 0

    cdef int _allocate(self, size_t size) except -1:
        cdef iovec *joined = &self._work.joined
        if size > self._bytes:
            free(joined.iov_base)
            joined.iov_base, self._bytes = NULL, 0
            if posix_memalign(&joined.iov_base, _ALIGNMENT, size):
                joined.iov_base = NULL
                raise MemoryError
            self._bytes = size
        joined.iov_len = size
        return 0

    cdef void _release(self):
        cdef Work *work = self._work
        while work.count:
            work.count -= 1
            PyBuffer_Release(&work.views[work.count])
        if self._bytes > _KEPT_BYTES_MAX:
            free(work.joined.iov_base)
            work.joined.iov_base, self._bytes = NULL, 0
