// SPDX-License-Identifier: Apache-2.0

package roce

// Octets of the headers that may stand between the BTH and the data, in this order.
//
//	BTH 12 | RDETH 4 or XRCETH 4 | DETH 8 | FETH 4 | RETH 16 or AtomicETH 28 | AETH 4 | AtomicAckETH 8 | ImmDt 4 or IETH 4
const (
	bthLen          = 12
	rdethLen        = 4
	xrcethLen       = 4
	dethLen         = 8
	fethLen         = 4
	rethLen         = 16
	atomicETHLen    = 28
	aethLen         = 4
	atomicAckETHLen = 8
	immDtLen        = 4
	iethLen         = 4
	cnpReservedLen  = 16
	methLen         = 4  // MRC: message numbers
	tsethLen        = 4  // MRC: timestamp, in packets that carry one
	sethLen         = 28 // MRC: SACK
)

// part is the place of a packet in its message.
type part uint8

const (
	none part = iota // not of a message: ACK, CNP, unknown
	first
	middle
	last
	only
)

// family groups the opcodes that can make up one message.
type family uint8

const (
	noFamily family = iota
	send
	write
	read // READ responses
	single
)

// kind is what one opcode means.
type kind struct {
	name     string
	headers  uint8 // octets before the data
	reth     uint8 // offset of the RETH in P, 0 without
	aeth     uint8 // offset of the AETH in P, 0 without
	data     int16 // octets of data that the opcode always has, -1: any number
	part     part
	family   family
	space    Space
	source   bool
	answered bool
}

// operation is a kind before its class is added.
type operation struct {
	name     string
	before   uint8 // octets of extension headers before RETH or AETH: the FETH
	reth     bool
	aeth     bool
	after    uint8 // octets of the other extension headers
	data     int16
	part     part
	family   family
	space    Space
	answered bool
}

var operations = [32]operation{
	SendFirst:          {name: "SEND_FIRST", data: -1, part: first, family: send},
	SendMiddle:         {name: "SEND_MIDDLE", data: -1, part: middle, family: send},
	SendLast:           {name: "SEND_LAST", data: -1, part: last, family: send},
	SendLastImm:        {name: "SEND_LAST_IMM", after: immDtLen, data: -1, part: last, family: send},
	SendOnly:           {name: "SEND_ONLY", data: -1, part: only, family: send},
	SendOnlyImm:        {name: "SEND_ONLY_IMM", after: immDtLen, data: -1, part: only, family: send},
	WriteFirst:         {name: "WRITE_FIRST", reth: true, data: -1, part: first, family: write},
	WriteMiddle:        {name: "WRITE_MIDDLE", data: -1, part: middle, family: write},
	WriteLast:          {name: "WRITE_LAST", data: -1, part: last, family: write},
	WriteLastImm:       {name: "WRITE_LAST_IMM", after: immDtLen, data: -1, part: last, family: write},
	WriteOnly:          {name: "WRITE_ONLY", reth: true, data: -1, part: only, family: write},
	WriteOnlyImm:       {name: "WRITE_ONLY_IMM", reth: true, after: immDtLen, data: -1, part: only, family: write},
	ReadRequest:        {name: "READ_REQUEST", reth: true, part: only, family: single, answered: true},
	ReadResponseFirst:  {name: "READ_RESPONSE_FIRST", aeth: true, data: -1, part: first, family: read, space: Response},
	ReadResponseMiddle: {name: "READ_RESPONSE_MIDDLE", data: -1, part: middle, family: read, space: Response},
	ReadResponseLast:   {name: "READ_RESPONSE_LAST", aeth: true, data: -1, part: last, family: read, space: Response},
	ReadResponseOnly:   {name: "READ_RESPONSE_ONLY", aeth: true, data: -1, part: only, family: read, space: Response},
	Acknowledge:        {name: "ACKNOWLEDGE", aeth: true},
	AtomicAcknowledge:  {name: "ATOMIC_ACKNOWLEDGE", aeth: true, after: atomicAckETHLen, part: only, family: single, space: Response},
	CompareSwap:        {name: "COMPARE_SWAP", after: atomicETHLen, part: only, family: single, answered: true},
	FetchAdd:           {name: "FETCH_ADD", after: atomicETHLen, part: only, family: single, answered: true},
	SendLastInv:        {name: "SEND_LAST_INVALIDATE", after: iethLen, data: -1, part: last, family: send},
	SendOnlyInv:        {name: "SEND_ONLY_INVALIDATE", after: iethLen, data: -1, part: only, family: send},
	Flush:              {name: "FLUSH", before: fethLen, reth: true, part: only, family: single, answered: true},
	AtomicWrite:        {name: "ATOMIC_WRITE", reth: true, data: 8, part: only, family: single, answered: true},
}

// kinds has a row for every opcode; rows of reserved opcodes are zero.
var kinds = func() (t [256]kind) {
	for op := SendFirst; op <= AtomicWrite; op++ {
		if operations[op].name == "" {
			continue
		}
		t[ClassRC+op] = operations[op].in("RC", 0, true)
		if op <= WriteOnlyImm {
			t[ClassUC+op] = operations[op].in("UC", 0, true)
		}
		if op <= SendOnlyInv {
			t[ClassXRC+op] = operations[op].in("XRC", operations[op].requestHeader(op, xrcethLen, 0), true)
		}
		if op <= FetchAdd {
			t[ClassRD+op] = operations[op].in("RD", rdethLen+operations[op].requestHeader(op, dethLen, 0), false)
		}
		if op == SendOnly || op == SendOnlyImm {
			t[ClassUD+op] = operations[op].in("UD", dethLen, false)
		}
	}
	t[CNP] = kind{name: "CNP", headers: bthLen + cnpReservedLen}
	addMRC(&t)
	return t
}()

// addMRC adds the opcodes of MRC. Its packets are sources for the Transport MRC only, so that no row has a space, and their headers may have a
// timestamp or not, so that no row of a WRITE says where the data is.
func addMRC(t *[256]kind) {
	for op := MRCWriteFirst; op <= MRCWriteOnlyImm; op++ {
		o := &operations[op-MRCWriteFirst+WriteFirst]
		t[op] = kind{name: "MRC " + o.name, data: -1, part: o.part, family: write}
	}
	for op, name := range map[Opcode]string{
		MRCAcknowledge: "ACKNOWLEDGE", MRCEndpointRequest: "ENDPOINT_REQUEST", MRCEndpointResponse: "ENDPOINT_RESPONSE",
		MRCSACK: "SACK", MRCNACK: "NACK", MRCProbe: "PROBE",
	} {
		t[op] = kind{name: "MRC " + name}
	}
}

// requestHeader returns the octets that the class adds to requests, or those that it adds to answers.
func (o *operation) requestHeader(op Opcode, request, answer uint8) uint8 {
	if o.space == Response || op == Acknowledge {
		return answer
	}
	return request
}

// in returns the operation in a class that puts class octets of headers behind the BTH. Classes that are never
// protected have no source opcode.
func (o *operation) in(name string, class uint8, protected bool) kind {
	k := kind{
		name: name + " " + o.name, data: o.data, part: o.part, family: o.family, space: o.space,
		source: protected && o.part != none, answered: protected && o.answered,
	}
	at := bthLen + class + o.before
	if o.reth {
		k.reth = at
		at += rethLen
	}
	if o.aeth {
		k.aeth = at
		at += aethLen
	}
	k.headers = at + o.after
	return k
}
