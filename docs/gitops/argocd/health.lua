-- SPDX-License-Identifier: Apache-2.0
-- Health of the kinds of crem.dev for Argo CD, which has no rule of its own for custom resources. The same text serves all kinds: it goes by
-- metadata.generation, status.observedGeneration and the conditions Ready, Stalled and Degraded.
local health = {status = "Progressing", message = "Waiting for the operator to look at it"}
if obj.status == nil or obj.status.conditions == nil then
  return health
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end

local generation = obj.metadata.generation
local function current(condition)
  return condition ~= nil and (generation == nil or condition.observedGeneration == nil or condition.observedGeneration >= generation)
end
local function text(condition)
  if condition.message ~= nil and condition.message ~= "" then
    return condition.reason .. ": " .. condition.message
  end
  return condition.reason
end

-- A person must act.
if current(conditions.Stalled) and conditions.Stalled.status == "True" then
  return {status = "Degraded", message = text(conditions.Stalled)}
end
if (obj.status.observedGeneration ~= nil and generation ~= nil and obj.status.observedGeneration < generation) or not current(conditions.Ready) then
  return {status = "Progressing", message = "Waiting for generation " .. tostring(generation) .. " to be looked at"}
end
if conditions.Ready.status == "True" then
  -- It protects, with less than it could: nothing that a rollout should wait for.
  if conditions.Degraded ~= nil and conditions.Degraded.status == "True" then
    return {status = "Healthy", message = text(conditions.Degraded)}
  end
  return {status = "Healthy", message = text(conditions.Ready)}
end
if conditions.Ready.status == "False" and conditions.Ready.reason == "NodesFailed" then
  return {status = "Degraded", message = text(conditions.Ready)}
end
return {status = "Progressing", message = text(conditions.Ready)}
