-- SPDX-License-Identifier: Apache-2.0
--
-- Wireshark dissector of the CREM messages (docs/protocol.md, Section 9) and of those about tunnels (docs/wan-ecn.md).
--
--   wireshark -X lua_script:hack/wireshark/crem.lua -o crem.port:52000
--
-- or copy it to the personal Lua plugins folder and set the port under Preferences, Protocols, CREM. CREM has no default
-- port (Section 3): until one is set, only "Decode As" finds the messages.

local crem = Proto("crem", "Congestion-Aware Reliability Enhancement Mechanism")

crem.prefs.port = Pref.uint("UDP port", 0, "The CREM port of the domain; 0: none")

local types = {
	[1] = "REPAIR", [2] = "HELLO", [3] = "HELLO_ACK", [4] = "PARAM_UPDATE", [5] = "PARAM_ACK",
	[6] = "REPAIR_REQUEST", [7] = "LOSS_REPORT", [8] = "PATH_REPORT", [9] = "CLOSE",
	[12] = "CNP", [13] = "LEASE", [14] = "READINGS",
}
local schemes = { [0] = "Source Copy", [1] = "Cauchy Reed-Solomon", [2] = "XOR" }
local kinds = { [1] = "RoCEv2", [192] = "RoCEv2 response", [193] = "veRoCE", [194] = "veRoCE response", [195] = "MRC" }
local statuses = { [0] = "accepted", [1] = "unsupported scheme", [2] = "limits exceeded", [3] = "resources exhausted" }
local methods = { [1] = "Alternate Marking", [2] = "Clustered Alternate Marking", [3] = "node drops" }
local causes = { [0] = "unknown", [1] = "congestion", [2] = "corruption", [3] = "link or route failure", [4] = "policy" }
local reasons = {
	[0] = "unspecified", [1] = "idle or ended", [2] = "restarted", [3] = "no answer",
	[4] = "persistent impairment", [5] = "administrative", [6] = "out of resources",
}

local levels = { [1] = "early", [2] = "severe" }

local f = crem.fields
f.version = ProtoField.uint8("crem.version", "Version", base.DEC, nil, 0xf0)
f.type = ProtoField.uint8("crem.type", "Type", base.DEC, types, 0x0f)
f.flags = ProtoField.uint8("crem.flags", "Flags", base.HEX)
f.retx = ProtoField.bool("crem.flags.retx", "RETX: coded retransmission", 8, nil, 0x80)
f.last = ProtoField.bool("crem.flags.last", "LAST: last symbol of the round", 8, nil, 0x40)
f.info = ProtoField.bool("crem.flags.info", "INFO: no symbol", 8, nil, 0x20)
f.has_digest = ProtoField.bool("crem.flags.digest", "DIGEST: block digest", 8, nil, 0x10)
f.fallback = ProtoField.bool("crem.flags.fallback", "FALLBACK: Source Copies wanted", 8, nil, 0x20)
f.ranges = ProtoField.bool("crem.flags.ranges", "RANGES: PSN-range form", 8, nil, 0x10)
f.detail = ProtoField.bool("crem.flags.detail", "DETAIL: runs, pairs and hold time", 8, nil, 0x80)
f.truncated = ProtoField.bool("crem.flags.truncated", "Truncated: lists of PSNs were cut", 8, nil, 0x80)
f.answer = ProtoField.bool("crem.flags.answer", "ANSWER: leases the tunnel", 8, nil, 0x80)
f.length = ProtoField.uint16("crem.length", "Length")
f.flow_id = ProtoField.uint32("crem.flow_id", "Flow ID", base.HEX)
f.reserved = ProtoField.bytes("crem.reserved", "Reserved")

f.config_id = ProtoField.uint8("crem.config_id", "Config ID")
f.scheme = ProtoField.uint8("crem.scheme", "Scheme", base.DEC, schemes)
f.k = ProtoField.uint8("crem.k", "k, positions of the block")
f.m = ProtoField.uint8("crem.m", "m, most ordinary symbols")
f.index = ProtoField.uint8("crem.repair_index", "Repair Index")
f.start = ProtoField.uint24("crem.start_psn", "Block Start PSN", base.HEX)
f.session = ProtoField.uint16("crem.session_id", "Repair Session ID")
f.symbol_length = ProtoField.uint16("crem.symbol_length", "Symbol Length T")
f.present = ProtoField.bytes("crem.present", "Present Bitmap")
f.present_count = ProtoField.uint8("crem.present.count", "Present positions")
f.lost = ProtoField.bytes("crem.lost", "Lost Source Bitmap")
f.lost_count = ProtoField.uint8("crem.lost.count", "Lost sources")
f.digest = ProtoField.uint64("crem.digest", "Block digest", base.HEX)
f.symbol = ProtoField.bytes("crem.symbol", "Symbol")

f.kind = ProtoField.uint8("crem.flow_kind", "Flow Kind", base.DEC, kinds)
f.af = ProtoField.uint8("crem.af", "AF")
f.schemes = ProtoField.uint16("crem.schemes", "Supported Schemes", base.HEX)
f.max_k = ProtoField.uint8("crem.max_k", "Max k")
f.max_m = ProtoField.uint8("crem.max_m", "Max m")
f.max_t = ProtoField.uint16("crem.max_t", "Max T")
f.mtu = ProtoField.uint16("crem.rdma_mtu", "RDMA MTU")
f.extensions = ProtoField.uint16("crem.extensions", "Extension bits", base.HEX)
f.ext_digest = ProtoField.bool("crem.extensions.digest", "Block digest", 16, nil, 0x0001)
f.ext_detail = ProtoField.bool("crem.extensions.detail", "LOSS_REPORT in detail", 16, nil, 0x0002)
f.nonce = ProtoField.uint64("crem.nonce", "Sender Nonce", base.HEX)
f.open_blocks = ProtoField.uint16("crem.max_open_blocks", "Max Open Blocks")
f.src4 = ProtoField.ipv4("crem.src", "Flow source")
f.dst4 = ProtoField.ipv4("crem.dst", "Flow destination")
f.src6 = ProtoField.ipv6("crem.src6", "Flow source")
f.dst6 = ProtoField.ipv6("crem.dst6", "Flow destination")
f.label = ProtoField.uint24("crem.flow_label", "Flow Label (destination queue pair)", base.HEX)

f.t = ProtoField.uint16("crem.t", "T, symbol length")
f.effective = ProtoField.uint24("crem.effective_psn", "Effective PSN", base.HEX)
f.status = ProtoField.uint8("crem.status", "Status", base.DEC, statuses)

f.held = ProtoField.uint8("crem.repairs_held", "Repairs Held r")
f.suggested = ProtoField.uint8("crem.suggested_m", "Suggested M")
f.request_id = ProtoField.uint16("crem.request_id", "Request ID")
f.range_count = ProtoField.uint16("crem.range_count", "Range Count")
f.range = ProtoField.bytes("crem.range", "Range")
f.range_start = ProtoField.uint24("crem.range.start_psn", "Start PSN", base.HEX)
f.range_size = ProtoField.uint8("crem.range.count", "Count")

f.interval = ProtoField.uint32("crem.interval", "Interval (us)")
f.expected = ProtoField.uint32("crem.expected", "Expected")
f.received = ProtoField.uint32("crem.received", "Received")
f.restored = ProtoField.uint32("crem.restored", "Restored")
f.incomplete = ProtoField.uint32("crem.incomplete_blocks", "Incomplete Blocks")
f.ce = ProtoField.uint32("crem.ce_marked", "CE Marked")
f.repairs = ProtoField.uint32("crem.repairs_received", "Repairs Received")
f.repairs_ce = ProtoField.uint32("crem.repairs_ce_marked", "Repairs CE Marked")
f.runs = ProtoField.uint32("crem.loss_runs", "Loss Runs")
f.pairs = ProtoField.uint32("crem.loss_pairs", "Loss Pairs")
f.hold = ProtoField.uint32("crem.hold", "Hold (us)")

f.method = ProtoField.uint8("crem.method", "Method", base.DEC, methods)
f.entries = ProtoField.uint8("crem.entry_count", "Entry Count")
f.hop = ProtoField.bytes("crem.hop", "Hop Entry")
f.node = ProtoField.uint32("crem.hop.node_id", "Node ID", base.HEX)
f.period = ProtoField.uint32("crem.hop.period", "Marking Period Number")
f.hop_lost = ProtoField.uint32("crem.hop.lost", "Lost Count")
f.delay = ProtoField.int32("crem.hop.delay_change", "Queue Delay Change (us)")
f.cause = ProtoField.uint8("crem.hop.cause", "Cause", base.DEC, causes)
f.psn_count = ProtoField.uint8("crem.hop.psn_count", "PSN Count")
f.dropped = ProtoField.uint24("crem.hop.dropped_psn", "Dropped PSN", base.HEX)

f.reason = ProtoField.uint8("crem.reason", "Reason", base.DEC, reasons)

f.level = ProtoField.uint8("crem.cnp.level", "Level", base.DEC, levels)
f.congested = ProtoField.uint32("crem.cnp.node_id", "Node ID", base.HEX)
f.sequence = ProtoField.uint64("crem.cnp.sequence", "Sequence")
f.time = ProtoField.uint64("crem.cnp.time", "Timestamp (us of Unix time)")

f.lease_nonce = ProtoField.uint64("crem.lease.nonce", "Nonce of the request", base.HEX)
f.lease_time = ProtoField.uint16("crem.lease.time", "Lease (ms)")
f.padding = ProtoField.bytes("crem.lease.padding", "Padding")

f.readings_period = ProtoField.uint32("crem.readings.period", "Marking Period Number")
f.readings_time = ProtoField.uint64("crem.readings.time", "Timestamp (us of Unix time)")
f.reading = ProtoField.bytes("crem.reading", "Reading")
f.packets = ProtoField.uint32("crem.reading.packets", "Packets")
f.sum = ProtoField.int64("crem.reading.sum", "Sum of times after the start of the period (ns)")

local malformed = ProtoExpert.new("crem.malformed", "Length or a field does not fit the message",
	expert.group.MALFORMED, expert.severity.ERROR)
crem.experts = { malformed }

-- Reader walks through a message and never beyond its end: what doesn't fit raises an error, caught in the dissector.
local Reader = {}
Reader.__index = Reader

local function reader(tvb, tree, at)
	return setmetatable({ tvb = tvb, tree = tree, at = at }, Reader)
end

function Reader:rest() return self.tvb:len() - self.at end

function Reader:take(octets)
	if octets > self:rest() then error({ short = octets }) end
	local range = self.tvb(self.at, octets)
	self.at = self.at + octets
	return range
end

-- add puts a field of some octets in the tree and returns its range.
function Reader:add(field, octets)
	local range = self:take(octets)
	self.tree:add(field, range)
	return range
end

function Reader:reserved(octets) self:add(f.reserved, octets) end

-- positions writes a set of positions as in "0-2, 31".
local function positions(set)
	local parts, i = {}, 1
	while i <= #set do
		local j = i
		while set[j + 1] == set[j] + 1 do j = j + 1 end
		parts[#parts + 1] = i == j and tostring(set[i]) or (set[i] .. "-" .. set[j])
		i = j + 1
	end
	return #parts > 0 and table.concat(parts, ", ") or "none"
end

-- bitmap adds the bitmap over k positions: bit j from the most significant of the first word is position j.
function Reader:bitmap(field, count, k)
	local range = self:take(math.floor((k + 31) / 32) * 4)
	local set = {}
	for j = 0, k - 1 do
		if range:range(math.floor(j / 8), 1):bitfield(j % 8, 1) == 1 then set[#set + 1] = j end
	end
	local item = self.tree:add(field, range)
	item:append_text(" (" .. positions(set) .. ")")
	item:add(count, range, #set):set_generated()
end

-- k reads a number of positions, which is never zero.
function Reader:k()
	local k = self:add(f.k, 1):uint()
	if k == 0 then error({ text = "k is zero" }) end
	return k
end

function Reader:flow(af)
	if af == 4 then
		self:add(f.src4, 4)
		self:add(f.dst4, 4)
	elseif af == 6 then
		self:add(f.src6, 16)
		self:add(f.dst6, 16)
	else
		error({ text = "AF is neither 4 nor 6" })
	end
	self:reserved(1)
	return self:add(f.label, 3):uint()
end

-- limits reads the first twelve octets that HELLO and HELLO_ACK share, and returns kind and AF.
function Reader:limits()
	local kind, af = self:add(f.kind, 1):uint(), self:add(f.af, 1):uint()
	self:add(f.schemes, 2)
	self:add(f.max_k, 1)
	self:add(f.max_m, 1)
	self:add(f.max_t, 2)
	self:add(f.mtu, 2)
	local range = self:take(2)
	local extensions = self.tree:add(f.extensions, range)
	extensions:add(f.ext_digest, range)
	extensions:add(f.ext_detail, range)
	return kind, af
end

local function name(values, v) return values[v] or tostring(v) end

-- One function a type: reads what follows the header, and returns the text of the Info column.
local body = {}

body[1] = function(r, flags)
	r:add(f.config_id, 1)
	local scheme = r:add(f.scheme, 1):uint()
	local k, index = r:k(), r:add(f.index, 1):uint()
	local start = r:add(f.start, 3):uint()
	r:reserved(1)
	r:add(f.session, 2)
	local t = r:add(f.symbol_length, 2):uint()
	r:bitmap(f.present, f.present_count, k)
	local retx, info = bit.band(flags, 0x80) ~= 0, bit.band(flags, 0x20) ~= 0
	if retx then r:bitmap(f.lost, f.lost_count, k) end
	if bit.band(flags, 0x10) ~= 0 then r:add(f.digest, 8) end
	if info ~= (t == 0) then error({ text = "INFO and Symbol Length disagree" }) end
	if not info then r:add(f.symbol, t) end
	return string.format("block 0x%06x k=%d %s", start, k,
		info and "INFO" or string.format("%s index=%d%s T=%d", name(schemes, scheme), index, retx and " RETX" or "", t))
end

body[2] = function(r)
	local kind, af = r:limits()
	r:add(f.nonce, 8)
	return string.format("%s QP 0x%06x", name(kinds, kind), r:flow(af))
end

body[3] = function(r)
	local kind, af = r:limits()
	if af ~= 4 and af ~= 6 then error({ text = "AF is neither 4 nor 6" }) end
	r:add(f.nonce, 8)
	r:add(f.open_blocks, 2)
	r:reserved(2)
	return name(kinds, kind)
end

body[4] = function(r)
	local id, scheme = r:add(f.config_id, 1):uint(), r:add(f.scheme, 1):uint()
	local k, m = r:k(), r:add(f.m, 1):uint()
	local t = r:add(f.t, 2):uint()
	r:reserved(2)
	local psn = r:add(f.effective, 3):uint()
	r:reserved(1)
	return string.format("config %d: %s k=%d m=%d T=%d from 0x%06x", id, name(schemes, scheme), k, m, t, psn)
end

body[5] = function(r)
	local id, status = r:add(f.config_id, 1):uint(), r:add(f.status, 1):uint()
	r:reserved(2)
	return string.format("config %d: %s", id, name(statuses, status))
end

local function ranges(r)
	local id, count = r:add(f.request_id, 2):uint(), r:add(f.range_count, 2):uint()
	for _ = 1, count do
		local range = r:take(4)
		local item = r.tree:add(f.range, range)
		item:add(f.range_start, range(0, 3))
		item:add(f.range_size, range(3, 1))
		item:set_text(string.format("Range: 0x%06x, %d PSNs", range(0, 3):uint(), range(3, 1):uint()))
	end
	return string.format("request %d: %d ranges", id, count)
end

body[6] = function(r, flags)
	local suffix = bit.band(flags, 0x20) ~= 0 and " FALLBACK" or ""
	if bit.band(flags, 0x10) ~= 0 then return ranges(r) .. suffix end
	r:add(f.config_id, 1)
	r:add(f.scheme, 1)
	local k, held = r:k(), r:add(f.held, 1):uint()
	local start, m = r:add(f.start, 3):uint(), r:add(f.suggested, 1):uint()
	local id = r:add(f.request_id, 2):uint()
	r:reserved(2)
	r:bitmap(f.lost, f.lost_count, k)
	return string.format("request %d: block 0x%06x k=%d r=%d M=%d%s", id, start, k, held, m, suffix)
end

body[7] = function(r, flags)
	r:add(f.interval, 4)
	local expected, received = r:add(f.expected, 4):uint(), r:add(f.received, 4):uint()
	local restored = r:add(f.restored, 4):uint()
	for _, field in ipairs({ f.incomplete, f.ce, f.repairs, f.repairs_ce }) do r:add(field, 4) end
	if bit.band(flags, 0x80) ~= 0 then
		for _, field in ipairs({ f.runs, f.pairs, f.hold }) do r:add(field, 4) end
	end
	return string.format("expected %d received %d restored %d", expected, received, restored)
end

local function hop(r)
	local from, outer = r.at, r.tree
	local item = outer:add(f.hop, r.tvb(from))
	r.tree = item
	local node = r:add(f.node, 4):uint()
	r:add(f.period, 4)
	local lost = r:add(f.hop_lost, 4):uint()
	r:add(f.delay, 4)
	local cause, count = r:add(f.cause, 1):uint(), r:add(f.psn_count, 1):uint()
	r:reserved(2)
	for _ = 1, count do
		r:reserved(1)
		r:add(f.dropped, 3)
	end
	item:set_len(r.at - from)
	item:set_text(string.format("Hop Entry: node 0x%08x lost %d (%s)", node, lost, name(causes, cause)))
	r.tree = outer
end

body[8] = function(r)
	local method, count = r:add(f.method, 1):uint(), r:add(f.entries, 1):uint()
	local af = r:add(f.af, 1):uint()
	r:reserved(1)
	local label = r:flow(af)
	if count > 16 then error({ text = "more than 16 entries" }) end
	for _ = 1, count do hop(r) end
	return string.format("%s QP 0x%06x: %d entries", name(methods, method), label, count)
end

body[9] = function(r)
	local reason = r:add(f.reason, 1):uint()
	r:reserved(3)
	return name(reasons, reason)
end

body[12] = function(r)
	local level, af = r:add(f.level, 1):uint(), r:add(f.af, 1):uint()
	if not levels[level] then error({ text = "level is neither early nor severe" }) end
	r:reserved(2)
	local label = r:flow(af)
	local node = r:add(f.congested, 4):uint()
	r:add(f.sequence, 8)
	r:add(f.time, 8)
	return string.format("%s QP 0x%06x: node 0x%08x", levels[level], label, node)
end

local longest_lease = 5000 -- milliseconds

body[13] = function(r, flags)
	r:add(f.lease_nonce, 8)
	local lease = r:add(f.lease_time, 2):uint()
	r:reserved(2)
	if bit.band(flags, 0x80) == 0 then
		local padding = r:rest()
		if padding > 0 then r:add(f.padding, padding) end
		return string.format("request, %d octets of padding", padding)
	end
	if lease > longest_lease then error({ text = "a lease of more than five seconds" }) end
	return lease > 0 and string.format("answer: %d ms", lease) or "answer: no more"
end

local function reading(r, af)
	local from, outer = r.at, r.tree
	local item = outer:add(f.reading, r.tvb(from))
	r.tree = item
	local label, packets = r:flow(af), r:add(f.packets, 4):uint()
	r:add(f.sum, 8)
	item:set_len(r.at - from)
	item:set_text(string.format("Reading: QP 0x%06x, %d packets", label, packets))
	r.tree = outer
end

body[14] = function(r)
	local period, af = r:add(f.readings_period, 4):uint(), r:add(f.af, 1):uint()
	r:reserved(3)
	r:add(f.readings_time, 8)
	local flows = 0
	repeat
		reading(r, af)
		flows = flows + 1
	until r:rest() == 0
	return string.format("period %d: %d flows", period, flows)
end

local type_flags = {
	[1] = { f.retx, f.last, f.info, f.has_digest },
	[6] = { f.fallback, f.ranges },
	[7] = { f.detail },
	[8] = { f.truncated },
	[13] = { f.answer },
}

-- report marks what is wrong with a message.
local function report(tree, pinfo, text)
	tree:add_proto_expert_info(malformed, text)
	pinfo.cols.info:append(" [malformed: " .. text .. "]")
end

function crem.dissector(tvb, pinfo, root)
	pinfo.cols.protocol = "CREM"
	local tree = root:add(crem, tvb())
	if tvb:len() < 8 then
		pinfo.cols.info = "CREM"
		report(tree, pinfo, "shorter than a header")
		return tvb:len()
	end
	local version, kind = tvb(0, 1):bitfield(0, 4), tvb(0, 1):bitfield(4, 4)
	local flags, length, id = tvb(1, 1):uint(), tvb(2, 2):uint(), tvb(4, 4):uint()
	tree:add(f.version, tvb(0, 1))
	tree:add(f.type, tvb(0, 1))
	local item = tree:add(f.flags, tvb(1, 1))
	for _, field in ipairs(type_flags[kind] or {}) do item:add(field, tvb(1, 1)) end
	tree:add(f.length, tvb(2, 2))
	tree:add(f.flow_id, tvb(4, 4))

	local title = string.format("%s flow 0x%08x", name(types, kind), id)
	pinfo.cols.info = title
	tree:append_text(", " .. title)
	if version ~= 1 then return report(tree, pinfo, "version " .. version) end
	if not body[kind] then return report(tree, pinfo, "type " .. kind) end
	if length ~= tvb:reported_len() then return report(tree, pinfo, "Length is not the datagram's") end

	local r = reader(tvb, tree, 8)
	local ok, text = pcall(body[kind], r, flags)
	if not ok then
		if type(text) ~= "table" then error(text, 0) end
		if tvb:len() < tvb:reported_len() then
			pinfo.cols.info:append(" [cut by the capture]")
			return tvb:len()
		end
		return report(tree, pinfo, text.text or "too short for its type and counts")
	end
	pinfo.cols.info:append(" " .. text)
	if r:rest() > 0 then report(tree, pinfo, "too long for its type and counts") end
	return tvb:len()
end

local udp_ports = DissectorTable.get("udp.port")
udp_ports:add_for_decode_as(crem)
local registered = 0

function crem.prefs_changed()
	if crem.prefs.port == registered then return end
	if registered ~= 0 then udp_ports:remove(registered, crem) end
	if crem.prefs.port ~= 0 then udp_ports:add(crem.prefs.port, crem) end
	registered = crem.prefs.port
end
