"""The COPY data of a connection, taken through libpq: bytes into one buffer, and no Python object per message.

The functions are those of the libpq that opened the connection: the caller looks them up and passes their addresses.
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
    // Does not jump when somebody sets the clock.
    static inline int64_t monotonic_ms() {
        using namespace std::chrono;
        return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
    }
    // False if there is no memory.
    static inline bool append_bytes(std::vector<uint8_t>& to, const char* p, int64_t n) {
        try {
            to.insert(to.end(), p, p + n);
            return true;
        } catch (const std::exception&) {
            return false;
        }
    }
    // What a server says beside the data. libpq hands it over in the middle of a call, on the thread that made it.
    struct Notices {
        char* (*field)(const void*, int) = nullptr;
        std::vector<std::pair<std::string, std::string>> kept;  // SQLSTATE, message
        bool dropped = false;  // there was no memory, or there were too many
    };
    // Whoever calls libpq listens meanwhile. A connection that outlives its listener has nothing that dangles.
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

FUNCTIONS = (
    "PQgetCopyData", "PQfreemem", "PQconsumeInput", "PQisBusy", "PQsocket", "PQsendQuery", "PQgetResult",
    "PQresultStatus", "PQresultErrorField", "PQresultErrorMessage", "PQerrorMessage", "PQclear",
    "PQputCopyEnd", "PQflush", "PQsetNoticeReceiver",
)

# What a COPY is in after a look at it.
OPEN, ENDED, FAILED = 0, 1, 2
# As libpq-fe.h numbers them: they are a part of its binary interface.
COMMAND_OK, TUPLES_OK, COPY_OUT, COPY_BOTH = 1, 2, 3, 8

cdef int SQLSTATE = 67  # PG_DIAG_SQLSTATE, 'C'
# A message has at most 1 GiB; with a batch of at most this before it, offsets stay in int32.
cdef int64_t MOST_BATCH = 1 << 29


cdef class CopyData:
    """Reads what a connection sends. Not for two threads at once, as the connection is not."""

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
    # How often there was something to read: a large message takes its time, and is no silence.
    cdef readonly int64_t arrivals
    cdef bint _torn                      # memory ran out: messages that were taken are lost

    def __init__(self, functions):
        """`functions`: name -> address of each of FUNCTIONS, in one and the same libpq."""
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

    def attend(self, uintptr_t connection):
        """Has what the server says beside the data kept for `notices`, and nothing of it printed."""
        self._set_receiver(<void*> connection, keep_notice, NULL)

    def notices(self):
        """(SQLSTATE, message) of what the server said beside the data since this was last called.

        Raises MemoryError if some of it could not be kept.
        """
        if self._notices.dropped:
            raise MemoryError("the server says more beside the data than can be kept")
        # By their places: a loop over them makes copies, which Cython does not expect to fail.
        said = [
            (_text(self._notices.kept[k].first.c_str()), _text(self._notices.kept[k].second.c_str()))
            for k in range(self._notices.kept.size())
        ]
        self._notices.kept.clear()
        return said

    def take(self, uintptr_t connection, int64_t most_bytes, int64_t first_ms, int64_t more_ms):
        """Takes messages until they are `most_bytes`; the one that makes them so many is whole.

        Waits `first_ms` for the first one, and `more_ms` from then on for more.

        Returns (a binary array of the messages, OPEN, ENDED if nothing follows, FAILED if the connection did).

        Raises:
            MemoryError: messages may be lost then; what follows them is not taken.
        """
        cdef void* c = <void*> connection
        cdef char* message = NULL
        cdef int got = 0, state = 0
        cdef int64_t deadline = monotonic_ms() + first_ms
        cdef cbool looked = False, room = True
        if self._torn:
            raise MemoryError("memory ran out while messages were taken: connect anew, to get them again")
        self._torn = True
        most_bytes = min(max(most_bytes, 1), MOST_BATCH)
        self._data.clear()
        self._offsets.clear()
        self._offsets.push_back(0)
        with nogil:
            listen(&self._notices)
            while <int64_t> self._data.size() < most_bytes:
                got = self._get_copy_data(c, &message, 1)
                if got > 0:
                    room = append_bytes(self._data, message, got)
                    self._freemem(message)
                    if not room:
                        break
                    if self._offsets.size() == 1:
                        deadline = monotonic_ms() + more_ms
                    self._offsets.push_back(<int32_t> self._data.size())
                    looked = False
                    continue
                if got < 0:
                    state = 1 if got == -1 else 2
                    break
                if not looked:
                    # What came already, before anybody waits.
                    looked = True
                elif not self._wait(c, deadline):
                    break
                if not self._consume_input(c):
                    state = 2
                    break
            listen(NULL)
        if not room:
            raise MemoryError(f"no memory for a message of {got} bytes")
        messages = self._array()
        self._torn = False
        return messages, state

    cdef bint _wait(self, void* c, int64_t deadline) noexcept nogil:
        """Whether there is something to read before the deadline. A signal ends it, too.

        It wakes for every message that a server sends by itself. That looks dear, but to let them gather, by pauses or
        a low-water mark, costs the server more than it spares here: its kernel then keeps and merges small packets.
        """
        cdef pollfd one
        cdef int64_t left = deadline - monotonic_ms()
        if left <= 0:
            return False
        one.fd = self._socket(c)
        one.events = POLLIN
        one.revents = 0
        # A connection that is lost has no descriptor; reading says so.
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
        """Sends a query; whether that went well."""
        return bool(self._send_query(<void*> connection, query))

    def end(self, uintptr_t connection):
        """Says that nothing more will be written; whether that went well."""
        cdef void* c = <void*> connection
        return self._put_copy_end(c, NULL) == 1 and self._flush(c) == 0

    def result(self, uintptr_t connection, int64_t milliseconds):
        """What came of a query, or of a COPY that has ended.

        Returns None if nothing came so long; (-1, None, "") if there is no more; else (its status, SQLSTATE or None,
        error message).
        """
        cdef void* c = <void*> connection
        cdef int64_t deadline = monotonic_ms() + milliseconds
        cdef bint busy = True
        cdef void* found = NULL
        with nogil:
            listen(&self._notices)
            while True:
                # A connection that is lost is not busy: the result says so.
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
        """What the connection last failed with."""
        return _text(self._connection_error(<void*> connection))


cdef object _text(const char* text):
    return (<bytes> text[:strlen(text)]).decode("utf-8", "replace") if text != NULL else ""
