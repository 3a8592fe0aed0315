// OpenAI's package for Node.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { answer, baseURL, City, collect, model, question, Weather, wild } from "./common.js";

const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const greedy = { model, messages, temperature: 0 };
const tool = zodFunction({ name: "get_weather", description: "The weather of a city.", parameters: Weather });
const ask = {
    ...wild,
    model,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    max_tokens: 300,
    tools: [tool],
    tool_choice: "required",
    parallel_tool_calls: false,
};

test("the model is listed", async () => {
    const models = await collect(client.models.list());
    assert.deepEqual(models.map(({ id }) => id), [model]);
});

test("a chat is answered", async () => {
    const reply = await client.chat.completions.create(greedy);
    const { message, finish_reason } = reply.choices[0];
    assert.deepEqual([message.role, message.content, finish_reason], ["assistant", answer, "stop"]);
    // 37 prompt tokens and 8 answer tokens by the oracle, as for the Python client.
    const { prompt_tokens, completion_tokens, total_tokens } = reply.usage;
    assert.deepEqual([prompt_tokens, completion_tokens, total_tokens], [37, 8, 45]);
});

test("a streamed chat is the same answer with usage at its end", async () => {
    const request = { ...greedy, stream: true, stream_options: { include_usage: true } };
    const chunks = await collect(await client.chat.completions.create(request));
    const pieces = chunks.flatMap(({ choices }) => choices).map(({ delta }) => delta.content ?? "");
    assert.equal(pieces.join(""), answer);
    assert(pieces.filter(Boolean).length > 3, "it comes in pieces");
    assert.equal(chunks.at(-2).choices[0].finish_reason, "stop");
    assert.equal(chunks.at(-1).usage.completion_tokens, 8);
});

test("the package's own accumulation of a stream is the whole answer", async () => {
    const stream = client.chat.completions.stream({ ...greedy, stream_options: { include_usage: true } });
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content, answer);
    assert.equal((await stream.totalUsage()).completion_tokens, 8);
});

test("a stream that is left ends its request", async () => {
    const aborted = async () => {
        const metrics = await (await fetch(`${process.env.OXIDE_INFER_URL}/metrics`)).text();
        return Number(/^oxide_infer_request_success_total\{.*"abort".*\} (\d+)/m.exec(metrics)[1]);
    };
    const before = await aborted();
    const endless = { ...greedy, stream: true, ignore_eos: true, max_tokens: 1500 };
    const stream = await client.chat.completions.create(endless);
    for await (const _ of stream) break;
    const deadline = Date.now() + 20_000;
    while ((await aborted()) !== before + 1) assert(Date.now() < deadline, "the server still writes it");
});

test("a required call has valid arguments", async () => {
    const { message, finish_reason } = (await client.chat.completions.create(ask)).choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.equal(message.content, null);
    assert.equal(message.tool_calls.length, 1);
    assert.equal(message.tool_calls[0].function.name, "get_weather");
    Weather.parse(JSON.parse(message.tool_calls[0].function.arguments));
});

test("a named call is parsed to its arguments", async () => {
    const tool_choice = { type: "function", function: { name: "get_weather" } };
    const { message, finish_reason } = (await client.chat.completions.parse({ ...ask, tool_choice })).choices[0];
    assert.equal(finish_reason, "stop");
    Weather.parse(message.tool_calls[0].function.parsed_arguments);
});

test("a streamed call adds up to the same call and the round trip is answered", async () => {
    const whole = (await client.chat.completions.create(ask)).choices[0].message;
    const [call] = whole.tool_calls;
    const chunks = await collect(await client.chat.completions.create({ ...ask, stream: true }));
    const deltas = chunks.flatMap(({ choices }) => choices).flatMap(({ delta }) => delta.tool_calls ?? []);
    assert(deltas.every(({ index }) => index === 0));
    assert.deepEqual(deltas.map((delta) => delta.function.name).filter(Boolean), [call.function.name]);
    assert.equal(deltas.map((delta) => delta.function.arguments ?? "").join(""), call.function.arguments);
    assert(deltas.length > 3, "the arguments come as they are made");

    const result = { role: "tool", tool_call_id: call.id, content: '{"temperature": 21, "sky": "clear"}' };
    const history = [...ask.messages, whole, result];
    const request = { ...greedy, messages: history, tools: [tool], tool_choice: "none", max_tokens: 20 };
    const final = (await client.chat.completions.create(request)).choices[0].message;
    assert(final.content);
    assert.equal(final.tool_calls, undefined);
});

test("the package's runner calls the function with what the model said", async () => {
    const called = [];
    const run = (weather) => called.push(weather) && "21 degrees";
    const parameters = zodFunction({ name: "get_weather", parameters: Weather, function: run });
    const tool_choice = { type: "function", function: { name: "get_weather" } };
    // A named function is called once, and the runner ends with what it returned.
    const runner = client.chat.completions.runTools({ ...ask, tools: [parameters], tool_choice });
    await runner.done();
    assert.equal(called.length, 1);
    Weather.parse(called[0]);
    assert.deepEqual(runner.messages.map(({ role }) => role), ["user", "assistant", "tool"]);
});

test("a form given as a class is kept", async () => {
    const response_format = zodResponseFormat(City, "city");
    const request = { ...wild, model, messages, max_tokens: 200, response_format };
    const { message, finish_reason } = (await client.chat.completions.parse(request)).choices[0];
    assert.equal(finish_reason, "stop");
    City.parse(message.parsed);

    const final = await client.chat.completions.stream(request).finalChatCompletion();
    assert.deepEqual(final.choices[0].message.parsed, message.parsed);
});

test("any JSON object is one", async () => {
    const request = { ...wild, model, messages, max_tokens: 60, response_format: { type: "json_object" } };
    const { message, finish_reason } = (await client.chat.completions.create(request)).choices[0];
    assert(message.content.startsWith("{"));
    if (finish_reason === "stop") JSON.parse(message.content);
    else assert.equal(finish_reason, "length");
});

test("a text is continued", async () => {
    const request = { model, prompt: "The capital of France is", temperature: 0, max_tokens: 4 };
    const whole = await client.completions.create(request);
    const pieces = await collect(await client.completions.create({ ...request, stream: true }));
    assert.match(whole.choices[0].text, /Paris/);
    assert.equal(pieces.map(({ choices }) => choices[0]?.text ?? "").join(""), whole.choices[0].text);
});

test("a response is the same answer whole and streamed", async () => {
    const request = { model, input: question, temperature: 0 };
    const whole = await client.responses.create(request);
    assert.deepEqual([whole.output_text, whole.status], [answer, "completed"]);
    assert.deepEqual([whole.usage.input_tokens, whole.usage.output_tokens], [37, 8]);
    const stream = client.responses.stream(request);
    const pieces = (await collect(stream)).filter(({ type }) => type === "response.output_text.delta");
    assert.equal(pieces.map(({ delta }) => delta).join(""), answer);
    assert.equal((await stream.finalResponse()).output_text, answer);
});

test("a response calls a function and the round trip is answered", async () => {
    const { name, description, parameters } = tool.function;
    const tools = [{ type: "function", name, description, parameters, strict: true }];
    const request = { ...wild, model, input: ask.messages, max_output_tokens: 300, tools, parallel_tool_calls: false };
    const first = await client.responses.create({ ...request, tool_choice: "required" });
    const [call] = first.output;
    assert.deepEqual([first.output.length, call.type, call.name], [1, "function_call", "get_weather"]);
    Weather.parse(JSON.parse(call.arguments));
    const result = { type: "function_call_output", call_id: call.call_id, output: '{"sky": "clear"}' };
    const input = [...ask.messages, ...first.output, result];
    const last = await client.responses.create({ ...request, input, tool_choice: "none", max_output_tokens: 20 });
    assert(last.output_text);
});

test("a response has the form of a class", async () => {
    const text = { format: zodTextFormat(City, "city") };
    const response = await client.responses.parse({ ...wild, model, input: question, max_output_tokens: 200, text });
    City.parse(response.output_parsed);
});

test("what is wrong is named in the package's own errors", async () => {
    const refused = (error, kind, status, code, param) => {
        assert(error instanceof kind, error);
        assert.deepEqual([error.status, error.code, error.param], [status, code, param]);
        assert(error.requestID, "the request's id is shown");
        return true;
    };
    await assert.rejects(client.chat.completions.create({ ...greedy, model: "gpt-9" }), (error) => {
        assert.match(error.message, /gpt-9/);
        return refused(error, OpenAI.NotFoundError, 404, "model_not_found", "model");
    });
    await assert.rejects(client.chat.completions.create({ ...greedy, temperature: 5 }), (error) => {
        assert.match(error.message, /'temperature'.*2/);
        return refused(error, OpenAI.BadRequestError, 400, "invalid_value", "temperature");
    });
    await assert.rejects(client.chat.completions.create({ ...greedy, stream: true, stop: [1] }), (error) =>
        refused(error, OpenAI.BadRequestError, 400, "invalid_type", "stop"),
    );
    await assert.rejects(client.responses.create({ model, input: "a", previous_response_id: "resp_1" }), (error) =>
        refused(error, OpenAI.BadRequestError, 400, "unsupported_parameter", "previous_response_id"),
    );
});
