// The Vercel AI SDK with its OpenAI-compatible provider.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
    APICallError,
    generateObject,
    generateText,
    NoObjectGeneratedError,
    Output,
    stepCountIs,
    streamObject,
    streamText,
    tool,
} from "ai";
import assert from "node:assert/strict";
import { test } from "node:test";
import { answer, baseURL, City, collect, model as name, question, Weather, wild } from "./common.js";

const settings = { name: "oxide-infer", baseURL, apiKey: "unused", includeUsage: true };
const provider = createOpenAICompatible({ ...settings, supportsStructuredOutputs: true });
const model = provider(name);
const greedy = { model, prompt: question, temperature: 0, maxRetries: 0 };
const ask = { ...wild, model, prompt: "What is the weather in Paris?", maxOutputTokens: 300, maxRetries: 0 };
const describe = { ...wild, model, prompt: "Describe Paris as JSON.", maxOutputTokens: 200, maxRetries: 0 };

/** The tools of a request, and what was asked of them. */
function weather() {
    const called = [];
    const get_weather = tool({
        description: "The weather of a city.",
        inputSchema: Weather,
        execute: async (input) => {
            called.push(input);
            return { temperature: 21, sky: "clear" };
        },
    });
    return { called, tools: { get_weather } };
}

test("a chat is answered", async () => {
    const { text, finishReason, usage, response } = await generateText(greedy);
    assert.deepEqual([text, finishReason, response.modelId], [answer, "stop", name]);
    assert.deepEqual([usage.inputTokens, usage.outputTokens, usage.totalTokens], [37, 8, 45]);
});

test("a streamed chat is the same answer with usage at its end", async () => {
    const result = streamText(greedy);
    const pieces = await collect(result.textStream);
    assert.equal(pieces.join(""), answer);
    assert(pieces.length > 3, "it comes in pieces");
    assert.equal(await result.finishReason, "stop");
    const usage = await result.usage;
    assert.deepEqual([usage.inputTokens, usage.outputTokens], [37, 8]);
});

test("a conversation with a system prompt, a limit and a stop string", async () => {
    const messages = [
        { role: "user", content: "Hi" },
        { role: "assistant", content: "Hello! How can I help?" },
        { role: "user", content: [{ type: "text", text: question }] },
    ];
    const request = { ...greedy, prompt: undefined, system: "You answer in one sentence.", messages };
    const cut = await generateText({ ...request, maxOutputTokens: 3 });
    assert.deepEqual([cut.finishReason, cut.usage.outputTokens], ["length", 3]);
    const stopped = await generateText({ ...greedy, stopSequences: [" France"] });
    assert.deepEqual([stopped.text, stopped.finishReason], ["The capital of", "stop"]);
});

test("a required call has valid arguments and the round trip is answered", async () => {
    const { called, tools } = weather();
    // The first step must call, the second answers with what came back.
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" });
    const one = { maxOutputTokens: 80, providerOptions: { "oxide-infer": { parallel_tool_calls: false } } };
    const result = await generateText({ ...ask, ...one, tools, prepareStep, stopWhen: stepCountIs(2) });
    assert.equal(result.steps.length, 2);
    assert.equal(result.steps[0].finishReason, "tool-calls");
    assert.equal(called.length, 1);
    Weather.parse(called[0]);
    assert.deepEqual(result.steps[0].toolCalls.map(({ input }) => input), called);
    assert(result.steps.at(-1).toolCalls.length === 0 && result.text);
});

test("a named call is the same whole and streamed", async () => {
    const { tools } = weather();
    const request = { ...ask, tools, toolChoice: { type: "tool", toolName: "get_weather" } };
    const whole = await generateText(request);
    assert.deepEqual(whole.toolCalls.map(({ toolName }) => toolName), ["get_weather"]);
    Weather.parse(whole.toolCalls[0].input);

    const result = streamText(request);
    const parts = await collect(result.fullStream);
    const deltas = parts.filter(({ type }) => type === "tool-input-delta");
    assert(deltas.length > 3, "the arguments come as they are made");
    assert.deepEqual(JSON.parse(deltas.map(({ delta }) => delta).join("")), whole.toolCalls[0].input);
    assert.deepEqual((await result.toolCalls).map(({ input }) => input), [whole.toolCalls[0].input]);
    assert.deepEqual((await result.toolResults).map(({ output }) => output.sky), ["clear"]);
});

test("a form is kept, whole and streamed", async () => {
    const output = Output.object({ schema: City });
    const whole = await generateText({ ...describe, output });
    City.parse(whole.output);
    const result = streamText({ ...describe, output });
    const partial = await collect(result.partialOutputStream);
    assert(partial.length > 3, "the object grows");
    assert.deepEqual(partial.at(-1), whole.output);
    assert.deepEqual(await result.output, whole.output);
});

test("a choice is kept", async () => {
    const options = ["Paris", "Rome", "Oslo"];
    const choice = await generateText({ ...greedy, output: Output.choice({ options }) });
    assert.equal(choice.output, "Paris");
});

test("the older functions for objects work as well", async () => {
    const { object, finishReason } = await generateObject({ ...describe, schema: City });
    City.parse(object);
    assert.equal(finishReason, "stop");
    const stream = streamObject({ ...describe, schema: City });
    assert.deepEqual((await collect(stream.partialObjectStream)).at(-1), object);
    // Without a schema nothing makes the model come to an end.
    const free = await generateObject({ ...describe, output: "no-schema", maxOutputTokens: 60 }).catch((error) => error);
    if (NoObjectGeneratedError.isInstance(free)) assert.equal(free.finishReason, "length");
    else assert.equal(typeof free.object, "object");
});

test("a text is continued", async () => {
    const request = { ...greedy, model: provider.completionModel(name), maxOutputTokens: 4 };
    const whole = await generateText({ ...request, prompt: "The capital of France is" });
    assert.equal(whole.finishReason, "length");
    const stream = streamText({ ...request, prompt: "The capital of France is" });
    assert.equal((await collect(stream.textStream)).join(""), whole.text);
});

test("the server's own fields pass through", async () => {
    const fields = { ignore_eos: true, min_p: 0.1 };
    const result = await generateText({ ...greedy, maxOutputTokens: 20, providerOptions: { "oxide-infer": fields } });
    assert.deepEqual([result.finishReason, result.usage.outputTokens], ["length", 20]);
});

test("what is wrong is named in the package's own errors", async () => {
    const refused = (status, code, pattern) => (error) => {
        assert(APICallError.isInstance(error), error);
        assert.equal(error.statusCode, status);
        assert.match(error.message, pattern);
        assert.equal(JSON.parse(error.responseBody).error.code, code);
        assert.equal(error.isRetryable, false);
        return true;
    };
    const unknown = generateText({ ...greedy, model: provider("gpt-9") });
    await assert.rejects(unknown, refused(404, "model_not_found", /gpt-9/));
    await assert.rejects(generateText({ ...greedy, temperature: 5 }), refused(400, "invalid_value", /'temperature'/));
    const errors = [];
    const stream = streamText({ ...greedy, topP: 0, onError: ({ error }) => errors.push(error) });
    await collect(stream.textStream);
    assert.equal(errors.length, 1);
    refused(400, "invalid_value", /'top_p'/)(errors[0]);
});
