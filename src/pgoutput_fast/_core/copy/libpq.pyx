"""Reads a connection's COPY data through libpq: all bytes go into one buffer, without a Python object per message.

The functions must be those of the libpq that opened the connection. The caller passes their addresses.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t
from libc.string cimport memcpy, strlen
from libcpp cimport bool as cbool
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

import pyarrow as pa

ctypedef int (*get_copy_data_t)(void*, char**, int) noexcept nogil
ctypedef void (*freemem_t)(void*) noexcept nogil
ctypedef int (*on_connection_t)(void*) noexcept nogil
ctypedef int (*send_query_t)(void*, const char*) noexcept nogil
ctypedef void* (*get_result_t)(void*) noexcept nogil
ctypedef int (*result_status_t)(const void*) noexcept nogil
ctypedef char* (*error_field_t)(const void*, int) noexcept nogil
ctypedef char* (*error_message_t)(const void*) noexcept nogil
ctypedef void (*clear_t)(void*) noexcept nogil
ctypedef void (*receiver_t)(void*, const void*) noexcept nogil
ctypedef receiver_t (*set_receiver_t)(void*, receiver_t, void*) noexcept nogil


cdef extern from "poll.h" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long count, int milliseconds)
    short POLLIN


cdef extern from *:
    """
    #include <chrono>
    // Unlike wall-clock time, this never jumps.
    static inline int64_t monotonic_ms() {
        using namespace std::chrono;
        return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
    }
    // Returns false if memory runs out.
    static inline bool append_bytes(std::vector<uint8_t>& to, const char* p, int64_t n) {
        try {
            to.insert(to.end(), p, p + n);
            return true;
        } catch (const std::exception&) {
            return false;
        }
    }
    static inline bool append_offset(std::vector<int32_t>& to, size_t offset) {
        try {
            to.push_back(static_cast<int32_t>(offset));
            return true;
        } catch (const std::exception&) {
            return false;
        }
    }
    // The server's notices. libpq delivers them during a call, on the calling thread.
    struct Notices {
        char* (*field)(const void*, int) = nullptr;
        std::vector<std::pair<std::string, std::string>> kept;  // SQLSTATE, message
        bool dropped = false;  // out of memory, or too many notices
    };
    // The receiver of this thread's notices. It is set only while `take` runs, which does not throw. So a connection
    // that outlives its listener has no dangling pointer.
    static thread_local Notices* listening = nullptr;
    static const size_t MOST_NOTICES = 1000;
    static inline void keep_notice(void*, const void* result) noexcept {
        if (listening == nullptr) return;
        try {
            const char* code = listening->field(result, 'C');
            const char* text = listening->field(result, 'M');
            if (listening->kept.size() < MOST_NOTICES)
                listening->kept.emplace_back(code ? code : "", text ? text : "");
            else
                listening->dropped = true;
        } catch (const std::exception&) {
            listening->dropped = true;
        }
    }
    static inline void listen(Notices* to) noexcept { listening = to; }
    """
    cppclass Notices:
        error_field_t field
        vector[pair[string, string]] kept
        cbool dropped
    void keep_notice(void*, const void*) noexcept nogil
    void listen(Notices* to) noexcept nogil
    int64_t monotonic_ms() noexcept nogil
    cbool append_bytes(vector[uint8_t]& to, const char* p, int64_t n) noexcept nogil
    cbool append_offset(vector[int32_t]& to, size_t offset) noexcept nogil

FUNCTIONS = (
    "PQgetCopyData", "PQfreemem", "PQconsumeInput", "PQisBusy", "PQsocket", "PQsendQuery", "PQgetResult",
    "PQresultStatus", "PQresultErrorField", "PQresultErrorMessage", "PQerrorMessage", "PQclear",
    "PQputCopyEnd", "PQflush", "PQsetNoticeReceiver",
)

# States of a COPY, returned by `take`.
OPEN, ENDED, FAILED = 0, 1, 2
# States of a result. The numbers are those of libpq-fe.h, and part of libpq's ABI.
COMMAND_OK, TUPLES_OK, COPY_OUT, COPY_BOTH = 1, 2, 3, 8

cdef int SQLSTATE = 67  # PG_DIAG_SQLSTATE, 'C'
# A message has at most 1 GiB. With at most this many bytes before it, its offsets fit int32.
cdef int64_t MOST_BATCH = 1 << 29


cdef class CopyData:
    """Reads data from a connection. Like the connection, it must not be used by two threads at once."""

    cdef get_copy_data_t _get_copy_data
    cdef freemem_t _freemem
    cdef on_connection_t _consume_input, _is_busy, _socket, _flush
    cdef send_query_t _send_query, _put_copy_end
    cdef get_result_t _get_result
    cdef result_status_t _result_status
    cdef error_field_t _error_field
    cdef error_message_t _result_error, _connection_error
    cdef clear_t _clear
    cdef set_receiver_t _set_receiver
    cdef Notices _notices
    cdef vector[uint8_t] _data
    cdef vector[int32_t] _offsets
    # Counts arrivals of data, also of partial messages: while a large message arrives, the server is not silent.
    cdef readonly int64_t arrivals
    cdef bint _out_of_memory                      # memory ran out: messages taken so far are lost

    def __init__(self, functions):
        """`functions` maps the names in FUNCTIONS to addresses in one libpq."""
        self._get_copy_data = <get_copy_data_t> <uintptr_t> functions["PQgetCopyData"]
        self._freemem = <freemem_t> <uintptr_t> functions["PQfreemem"]
        self._consume_input = <on_connection_t> <uintptr_t> functions["PQconsumeInput"]
        self._is_busy = <on_connection_t> <uintptr_t> functions["PQisBusy"]
        self._socket = <on_connection_t> <uintptr_t> functions["PQsocket"]
        self._send_query = <send_query_t> <uintptr_t> functions["PQsendQuery"]
        self._flush = <on_connection_t> <uintptr_t> functions["PQflush"]
        self._put_copy_end = <send_query_t> <uintptr_t> functions["PQputCopyEnd"]
        self._get_result = <get_result_t> <uintptr_t> functions["PQgetResult"]
        self._result_status = <result_status_t> <uintptr_t> functions["PQresultStatus"]
        self._error_field = <error_field_t> <uintptr_t> functions["PQresultErrorField"]
        self._result_error = <error_message_t> <uintptr_t> functions["PQresultErrorMessage"]
        self._connection_error = <error_message_t> <uintptr_t> functions["PQerrorMessage"]
        self._clear = <clear_t> <uintptr_t> functions["PQclear"]
        self._set_receiver = <set_receiver_t> <uintptr_t> functions["PQsetNoticeReceiver"]
        self._notices.field = self._error_field

    def collect_notices(self, uintptr_t connection):
        """Keeps the server's notices for `notices`. Without this, libpq prints them."""
        self._set_receiver(<void*> connection, keep_notice, NULL)

    def notices(self):
        """Returns (SQLSTATE, message) of the server's notices since the last call.

        Raises:
            MemoryError: if notices could not be kept.
        """
        if self._notices.dropped:
            raise MemoryError("the server says more beside the data than can be kept")
        # An index loop, because Cython's loop over a vector copies the elements and does not handle a failed copy.
        said = [
            (_text(self._notices.kept[k].first.c_str()), _text(self._notices.kept[k].second.c_str()))
            for k in range(self._notices.kept.size())
        ]
        self._notices.kept.clear()
        return said

    def take(self, uintptr_t connection, int64_t most_bytes, int64_t first_ms, int64_t more_ms):
        """Takes whole messages until they have `most_bytes`. The last message may exceed that.

        Waits `first_ms` for the first message, and after that `more_ms` for more.

        Returns (binary array of the messages, state). The state is OPEN, ENDED at the end of the COPY, or FAILED if the
        connection failed.

        Raises:
            MemoryError: if memory runs out, and in every later call. Messages may be lost.
        """
        cdef void* c = <void*> connection
        cdef char* message = NULL
        cdef int got = 0, state = 0
        cdef int64_t deadline = monotonic_ms() + first_ms
        cdef cbool looked = False, stored = True
        if self._out_of_memory:
            raise MemoryError("memory ran out while messages were taken: connect anew, to get them again")
        self._out_of_memory = True
        most_bytes = min(max(most_bytes, 1), MOST_BATCH)
        self._data.clear()
        self._offsets.clear()
        self._offsets.push_back(0)
        with nogil:
            listen(&self._notices)
            while <int64_t> self._data.size() < most_bytes:
                got = self._get_copy_data(c, &message, 1)
                if got > 0:
                    stored = append_bytes(self._data, message, got) and append_offset(self._offsets, self._data.size())
                    self._freemem(message)
                    if not stored:
                        break
                    if self._offsets.size() == 2:
                        deadline = monotonic_ms() + more_ms
                    looked = False
                    continue
                if got < 0:
                    state = 1 if got == -1 else 2
                    break
                if not looked:
                    # Reads data that has already arrived before it waits.
                    looked = True
                elif not self._wait(c, deadline):
                    break
                if not self._consume_input(c):
                    state = 2
                    break
            listen(NULL)
        if not stored:
            raise MemoryError(f"no memory for a message of {got} bytes")
        messages = self._array()
        self._out_of_memory = False
        return messages, state

    cdef bint _wait(self, void* c, int64_t deadline) noexcept nogil:
        """Waits until data can be read. Returns False at the deadline, or if a signal arrives.

        It wakes up for every message that the server sends separately. Letting messages accumulate, with pauses or a
        low-water mark, would cost the server more than it saves here, because the server's kernel would then keep and
        merge small packets.
        """
        cdef pollfd one
        cdef int64_t left = deadline - monotonic_ms()
        if left <= 0:
            return False
        one.fd = self._socket(c)
        one.events = POLLIN
        one.revents = 0
        # A lost connection has no descriptor. The next read reports the loss.
        if one.fd >= 0 and poll(&one, 1, <int> min(left, 1 << 20)) <= 0:
            return False
        self.arrivals += 1
        return True

    cdef object _array(self):
        cdef int64_t count = <int64_t> self._offsets.size() - 1, size = <int64_t> self._data.size()
        data, offsets = pa.allocate_buffer(size), pa.allocate_buffer(4 * (count + 1))
        cdef uintptr_t address = data.address
        if size:
            memcpy(<void*> address, self._data.data(), <size_t> size)
        address = offsets.address
        memcpy(<void*> address, self._offsets.data(), <size_t> (4 * (count + 1)))
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])

    def send(self, uintptr_t connection, bytes query):
        """Sends a query. Returns whether that succeeded."""
        return bool(self._send_query(<void*> connection, query))

    def end(self, uintptr_t connection):
        """Tells the server that the client writes nothing more. Returns whether that succeeded."""
        cdef void* c = <void*> connection
        return self._put_copy_end(c, NULL) == 1 and self._flush(c) == 0

    def result(self, uintptr_t connection, int64_t milliseconds):
        """Returns the next result of a query, or of a COPY that has ended: (status, SQLSTATE or None, error message).

        Returns None if no result arrives within `milliseconds`, and (-1, None, "") if there are no more results.
        """
        cdef void* c = <void*> connection
        cdef int64_t deadline = monotonic_ms() + milliseconds
        cdef bint busy = True
        cdef void* found = NULL
        with nogil:
            listen(&self._notices)
            while True:
                # A lost connection is not busy. Its result reports the loss.
                if not self._is_busy(c):
                    busy = False
                    break
                if not self._wait(c, deadline):
                    break
                if not self._consume_input(c):
                    busy = False
                    break
            if not busy:
                found = self._get_result(c)
            listen(NULL)
        if busy:
            return None
        if found == NULL:
            return -1, None, ""
        status = self._result_status(found)
        cdef char* code = self._error_field(found, SQLSTATE)
        try:
            return status, None if code == NULL else _text(code), _text(self._result_error(found))
        finally:
            self._clear(found)

    def error(self, uintptr_t connection):
        """Returns the connection's last error message."""
        return _text(self._connection_error(<void*> connection))


cdef object _text(const char* text):
    return (<bytes> text[:strlen(text)]).decode("utf-8", "replace") if text != NULL else ""
