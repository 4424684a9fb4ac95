// What comes from elsewhere, a link or the hub, is read up to a bound.

export const LARGEST_CONFIG = 5_000_000; // bytes, as on the command line

/** The bytes of a stream. Throws a RangeError, and reads no further, where there are more than `largest`. */
export async function readBytes(stream, largest) {
  const reader = stream.getReader(), chunks = [];
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > largest) {
      await reader.cancel().catch(() => {});
      throw new RangeError(`more than ${largest} bytes`);
    }
    chunks.push(value);
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
