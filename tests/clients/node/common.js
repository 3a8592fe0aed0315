// What the cases of both packages share: the server's address, a question whose answer is known, a function, a form.

import { z } from "zod";

export const model = "smollm2";
export const baseURL = `${process.env.OXIDE_INFER_URL}/v1`;

export const question = "What is the capital of France?";
export const answer = "The capital of France is Paris.";

// At a temperature at which this model writes no JSON of its own accord; the seed makes it repeatable.
export const wild = { temperature: 1.5, seed: 3 };

export const Weather = z.strictObject({
    city: z.string().regex(/^[A-Z][a-z]{2,9}$/),
    days: z.int().min(1).max(7),
});

export const City = z.strictObject({
    name: z.string().regex(/^[A-Z][a-z]{1,11}$/),
    country: z.strictObject({ code: z.enum(["FR", "IT"]) }),
    rivers: z.array(z.enum(["Seine", "Tiber"])).max(1),
});

export async function collect(stream) {
    const all = [];
    for await (const one of stream) all.push(one);
    return all;
}
