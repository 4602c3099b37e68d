// Which model a request is for, and by which key its conversation is hashed. For njs: nginx alone reads no JSON.

const SESSIONS = ["X-Affinity", "X-Claude-Code-Session-Id", "Session-Id", "X-Session-Id", "X-Session-Affinity"];
const STORED = /\/v1\/(responses|conversations)/;

function parsed(text) {
    try {
        return JSON.parse(text) || {};
    } catch (error) {
        return {};  // no body, or one that the server refuses
    }
}

function first(messages) {  // the text of the first message that is not the system's
    const found = messages.find(message => message && !["system", "developer"].includes(message.role)) || {};
    return Array.isArray(found.content) ? (found.content[0] || {}).text : found.content;
}

function key(r, body, stored) {
    const headers = r.headersIn;
    const session = SESSIONS.find(name => headers[name]);
    const named = headers["X-Conversation-Id"] || body.prompt_cache_key || headers[session];
    if (named) {
        return named;
    }
    const client = headers["Authorization"] || headers["X-Api-Key"] || r.remoteAddress;
    if (stored) {
        return client;
    }
    const text = Array.isArray(body.messages) && first(body.messages);
    return text ? client + " " + text : r.variables.request_id;  // without a key any replica will do
}

function route(r) {
    const body = parsed(r.requestText);
    const stored = STORED.test(r.uri);
    r.variables.noria_model = body.model;
    r.variables.noria_key = key(r, body, stored);
    r.internalRedirect(stored ? "@stored" : "@replicas");
}

export default {route};
