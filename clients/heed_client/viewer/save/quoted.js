// Labels of tables.

/** A label of a table. One that a spreadsheet would read as a formula begins with ' (https://owasp.org/www-community/attacks/CSV_Injection).
 *  @param {string} word */
export const quoted = (word) => `"${word.replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
