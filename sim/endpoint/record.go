// SPDX-License-Identifier: Apache-2.0

package endpoint

// record is which packets have come: all before expected, none from newest on, and of those between the ones that are marked.
type record struct {
	expected, newest uint64
	came             []bool // by number modulo its length, a power of two
	asked            uint64 // number after the newest packet that asked for an answer
}

// take accepts a packet that is new, and says whether with it everything has come up to one that asked for an answer. A packet that fills the
// last hole of a message without being a copy of the transport's own (CREM restored it) ends the message all the same.
func (r *record) take(p *Packet) (ends bool) {
	before := r.expected
	if p.AckReq {
		r.asked = max(r.asked, p.Seq+1)
	}
	r.accept(p.Seq)
	return before < r.asked && r.expected >= r.asked
}

// has says whether a packet has come.
func (r *record) has(seq uint64) bool {
	return seq < r.expected || seq < r.newest && r.came[seq&uint64(len(r.came)-1)]
}

// accept notes that a packet has come. It is false for one that had come before.
func (r *record) accept(seq uint64) bool {
	if r.has(seq) {
		return false
	}
	r.pass(seq + 1)
	mask := uint64(len(r.came) - 1)
	r.came[seq&mask] = true
	for r.expected < r.newest && r.came[r.expected&mask] {
		r.came[r.expected&mask] = false
		r.expected++
	}
	return true
}

// pass notes that packets before end have been sent, whether they have come or not.
func (r *record) pass(end uint64) {
	r.newest = max(r.newest, end)
	n := max(len(r.came), 64)
	for r.newest-r.expected > uint64(n) {
		n *= 2
	}
	if n == len(r.came) {
		return
	}
	came := make([]bool, n)
	for i := range r.came {
		seq := r.expected + uint64(i)
		came[seq&uint64(n-1)] = r.came[seq&uint64(len(r.came)-1)]
	}
	r.came = came
}

// bits returns which of the 64 packets from first on have come.
func (r *record) bits(first uint64) (word uint64) {
	for i := range uint64(64) {
		if r.has(first + i) {
			word |= 1 << i
		}
	}
	return word
}
