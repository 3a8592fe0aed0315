// Writes what became of each case as a line of JSON: its name, and what went wrong or null.

export default async function* report(events) {
    for await (const { type, data } of events) {
        if (type === "test:stderr") process.stderr.write(data.message);
        if (type !== "test:pass" && type !== "test:fail") continue;
        const error = data.details?.error;
        const wrong = type === "test:fail" ? String(error?.cause?.stack ?? error?.cause ?? error?.message) : null;
        yield `${JSON.stringify({ name: data.name, wrong })}\n`;
    }
}
